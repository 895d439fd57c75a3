"""No view: the tests call theirs, or have a URL configuration of their own."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
