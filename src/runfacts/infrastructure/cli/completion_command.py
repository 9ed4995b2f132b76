"""``runfacts completion``: what a shell needs to complete this command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation


@click.command("completion", cls=EverywhereCommand, short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@pass_invocation
def command(invocation: Invocation, ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    Bash: eval "$(runfacts completion bash)" in ~/.bashrc. Zsh: eval "$(runfacts completion zsh)" in ~/.zshrc.
    Fish: runfacts completion fish > ~/.config/fish/completions/runfacts.fish
    """
    from runfacts.infrastructure.cli.program import COMPLETION_VARIABLE, NAME

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}", ctx)
    script = kind(ctx.find_root().command, {}, NAME, COMPLETION_VARIABLE).source()
    if invocation.json:
        output.write_json({"shell": shell, "script": script})
    else:
        output.write(script)
