"""The driver for simulated devices: islands in simulated time, and client threads released one after another.

No real clock decides what a trace contains, except for threads that wait unseen (see ``thread_turns``).
"""
