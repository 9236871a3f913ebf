"""The nodes' side: an agent applies the master's decisions to its node through a runtime, and reports what it sees.

    agents.reconcile   pure: desired containers against seen ones gives actions
    agents.desired     pure: folds the master's rounds into what this node should run
    agents.agent       the shell: follows the log, drives the runtime, publishes facts
    agents.runtime     the interface to an engine; agents.docker and agents.process implement it

Agents are level-triggered: a restart, a crash, a lost connection or a repeated message all end in the same state.  They
follow only what the master wrote on the log and never import `dorm`.
"""
