"""The program: command line, configuration, serve, and the process around the connections.

    cli       the commands, each a file of `commands`
    serve     puts the parts together; `workers` does so in several processes
    life_cycle, reload, admin, logs, status   what is around it

Read `serve` first.
"""
