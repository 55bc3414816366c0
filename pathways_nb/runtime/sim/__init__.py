"""The driver for simulated devices: islands in virtual time, and turns of client threads.

No real clock decides anything.
"""
