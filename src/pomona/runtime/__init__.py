"""How any actor runs: its mailbox, the wire, where it is placed, and who watches it."""
