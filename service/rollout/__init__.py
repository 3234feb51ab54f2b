"""Which version a worker serves, and how it moves to another one without losing a request."""
