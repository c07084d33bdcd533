"""Talks to a running server over HTTP, so that the command line and scripts need not.

``admin.AdminClient`` speaks the admin plane, ``data.DataClient`` the data plane. Both are
synchronous and may be used from several threads. Every failure is a ClientError whose message a
person can act on.
"""
