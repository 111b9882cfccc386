"""Whether tests notice that the library is wrong: small changes to it, at random, one at a time.

python -m tools.mutants --sample 500 --seed 1        both groups
python -m tools.mutants --sample 100 --group core    one of them

A mutant is the library with one change: `<` for `<=`, a statement left out, a condition that always
holds (`points.py`). It runs in a copy of the working tree, in which nothing but that one file
differs, and so reaches programs that tests start, too. Only the tests that belong to it run: those
that execute the changed line, by a record that is made once per test file (`reach.py`), the nearest
and fastest first. A mutant is noticed once one of them fails, ends its process or takes too long.
"""
