"""`python -m gradjury`."""

from gradjury.verify.cli import main

if __name__ == "__main__":
    main()
