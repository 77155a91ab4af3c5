"""A Fetch that has partitions in the tier, in the order of its trip:

client ──Fetch──▶ service: which partitions lie below the frontier?  (frontiers, lineages, sessions)
                    │ none: the frame is relayed as it came
                    ▼
                  plan: what is the tier's, what is local
                    ▼
exchange ───────▶ probe on the client's own connection: may it? HW, LSO, log start  (authorities, aborted_tails)
                    │    right behind it own_fetch: the local partitions
                    ▼
                  reads of the tier, for what is left of the limit (tier); fallback: who reads what fails
                    ▼
                  answer: one for each partition, in the broker's order
"""
