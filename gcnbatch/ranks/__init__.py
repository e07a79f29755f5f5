"""Ranks: processes that a launcher (mpirun, srun) started for one command. Rank 0 leads; the others follow it.

Nothing here imports MPI unless a launcher started several processes. `gcnbatch.ranks.launch` recognises launchers,
`gcnbatch.ranks.world` joins the ranks, `gcnbatch.ranks.watch` notices the end of one of them, `gcnbatch.ranks.witness`
reports it, and `gcnbatch.ranks.pool` runs calls on all of them, for rank 0 in `gcnbatch.ranks.process`.
"""
