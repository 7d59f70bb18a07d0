"""python -m selfsame"""

from selfsame.cli import main

main()
