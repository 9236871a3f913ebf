"""Tests of the laboratory, `dorm_lab`: its folders mirror the package's."""
