"""
What the switches cost, and how fast they are: a file a question, and the site that is asked.

``python -m benchmarks.switches`` runs all of it. README.md, a folder up, says how to read the tables.
"""
