"""The demo site: an ordinary Django project that uses the app as any project would."""
