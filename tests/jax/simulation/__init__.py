"""Simulated devices: their time, their cost, turns of client threads."""
