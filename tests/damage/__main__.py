"""`python -m tests.damage`."""

from tests.damage.run import main

main()
