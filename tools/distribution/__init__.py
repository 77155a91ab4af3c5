"""What a user installs, made of this tree.

- `backend`: the build back end of pyproject.toml: wheel and source distribution, with one package, `tidegate`;
- `import_mapping`: one module's source, with its imports of ours under another name;
- `command_pages`: man page and completions, out of the command line itself;
- `archives`: zip and tar files, and a wheel's metadata, the same bytes for the same input.
"""
