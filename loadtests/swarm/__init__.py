"""Tens of thousands of sockets that hardly say anything, from several processes of one machine."""
