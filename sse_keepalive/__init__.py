"""
Keeps Django's Server-Sent-Events streams alive.

The rooms of the house, from the ground up; each imports only from those above it:

``frames``
    The wire: events, keep-alive frames, and where a stream has stopped.
``silence``
    How long a stream has been silent, and what its task waits for meanwhile.
``keepalive``
    The core: an asynchronous iterable in, the same with keep-alives out.
``conf``
    One typed property per setting.
``errors``
    What goes wrong in a stream, and who is told of it.
``options``
    What can be said of a stream in code.
``http``
    ``EventStreamResponse``: a streaming response that stays alive.
``decorators``
    ``sse_keepalive``: what users type.
``checks``, ``apps``
    What is told to whoever configures the site.
"""

__version__ = "0.1.0"
