"""Islands of hosts: in this process, and on a Ray cluster."""
