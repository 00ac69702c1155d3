"""The trial of sockets that stop reading, and these sockets."""
