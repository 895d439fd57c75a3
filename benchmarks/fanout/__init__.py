"""
How fast messages get to many clients, over several server processes and Redis: the site, its sender, its clients.

``python -m benchmarks.fanout`` runs all of it. README.md, a folder up, says how to read the tables.
"""
