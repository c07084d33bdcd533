"""Faults done to a running server on purpose, and what must hold after each.

The server is seen from outside: HTTP, /proc and signals. It serves small models that answer what
they were asked, so that each answer shows whose it is and which version gave it. The rules have
letters, which the table of results uses:

A what was acknowledged is readable, and every object has its digest
B planned operations: no 5xx and no broken connection
C what dies by accident takes with it only what was in flight there, as a 503 or a closed connection
D no answer reaches another request
E once a change was answered, no request sent after it gets the version before
F queues stay within their bound, and are empty once it is quiet
G once it is quiet: memory at most 5 % up; files, threads and mappings not at all
H recovered within 5 seconds
I the p99 stays within the stated multiple
"""
