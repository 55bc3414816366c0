"""Says how a traced function depends on the rows of its batch, or on the tokens of its sequences.

A batch that is split into microbatches, replicas or token slices gives the loss of the whole batch only if the loss is
a mean over what is split. This package reads that from the jaxpr, so that the answer holds for every batch and for
simulated devices, too: ``marks`` has what is known of a value, the ``..._rules`` what each primitive makes of it,
``walk`` goes through the equations, ``verdicts`` says what a loss is, ``auxiliary`` how auxiliary outputs are joined,
and ``examine`` puts them together. ``mean`` is ``pw.mean``, which pipelines and FSDP divide by counts of the whole
batch. It must not contain schedules or collectives. Pipelines and FSDP import it.
"""
