"""Arbitrary calls of the whole SQL API by several actors at once, and what must hold whatever they call.

`values` knows what an argument of a name can be, `world` holds the sessions and the database, `rules` says what must
hold, `machine` is Hypothesis's state machine over all of it, `faults` are what it has to find.
"""
