"""The lab: real faults and real load on whole clusters.  It is not part of the wheel."""
