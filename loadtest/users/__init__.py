"""What loadtest/locustfile.py is put together from: users, shapes of load, and the gate."""
