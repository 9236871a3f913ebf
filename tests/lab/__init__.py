"""The lab: real faults and real load on whole clusters.  Nothing of it ships."""
