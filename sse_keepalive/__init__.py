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
``switches``
    What an operator has decided about each endpoint, as a snapshot in memory.
``models``
    The same as a table.
``options``
    What can be said of a stream, and what of it is in force.
``endpoints``
    Which endpoint a request is for, and what a stopped one answers.
``streams``
    The streams that are open in this process, each told when its switch changes.
``event_stream``
    The behaviour of a response that stays alive, whatever class it is of.
``http``
    ``EventStreamResponse``, and what makes other responses stay alive.
``decorators``
    ``sse_keepalive``: what users type.
``relays``
    What comes to one channel of a channel layer, received once and handed to all that want it.
``layers``
    ``group_messages``: what is sent to groups of a channel layer, as an asynchronous iterable.
``consumers``
    ``EventStreamConsumer``: an event stream as a consumer of Channels.
``checks``, ``apps``
    What is told to whoever configures the site.
``admin``
    The switches, for operators.
``testing``
    What users need in their own tests.
"""

__version__ = "0.1.0"
