"""``python -m impatience.cli``, for launchers such as torchrun."""

from impatience.cli import main

main()
