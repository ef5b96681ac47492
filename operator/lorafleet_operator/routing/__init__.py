"""How requests find the engines of an adapter: Services, EndpointSlices and HTTPRoutes.

names      what the objects are called
endpoints  which engines an adapter's Services name, and in which slice: pure
objects    the objects themselves, from that: pure
router     writes them when something has changed, also while a long pass runs
"""
