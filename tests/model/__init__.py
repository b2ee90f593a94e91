"""Two models of the protocol.

small_*, explorer                            as small as can be, so that every interleaving of it can be gone through
reference, reality, caller, protocol_machine  all verbs in full, step by step beside a real server
"""
