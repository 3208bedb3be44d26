"""``python -m eval``: several systems by one command, runs beside each other, a benchmark's data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from typer.exceptions import TyperException

from deltamem import plugins
from deltamem.config import composed, run_plain, validated
from deltamem.errors import DeltaMemError

# Imports of what a single command needs are in the commands: they take seconds.
app = typer.Typer(name="eval", add_completion=False, help="Work with benchmarks and their results.")


@app.command()
def run(
    settings: Annotated[
        list[str],
        typer.Argument(
            help="benchmark=NAME systems=[none,naive_rag,...], and keys of python -m eval.NAME; estimate=true shows first "
            "what it would cost.",
            show_default=False,
        ),
    ],
) -> int:
    """Run several memory systems on one benchmark, one after the other, each in a folder of its own, and compare them.

    A system that cannot run at all does not keep the others from running; wrong settings are found before anything is run.
    """
    from eval import runner
    from eval.compare.export import print_comparison
    from eval.compare.page import write_report
    from eval.compare.runs import load_runs
    from eval.estimate import estimate, estimate_table
    from eval.systems.kinds import system_kind

    name, systems, given = _parsed(settings)
    kind = plugins.load("benchmarks", name)
    out = Path(given.get("out", f"runs/{name}"))
    overrides = [one for one in settings if one.partition("=")[0] not in ("benchmark", "systems", "out")]
    configs = []
    for system in systems:
        system_kind(system)
        config = validated(
            composed(name, [*overrides, f"system={system}", f"out={out / system}"], kind.config_dir), kind.config_type
        )
        config.check()
        configs.append(config)
    console = Console(highlight=False)
    if configs[0].estimate:
        console.print(estimate_table([estimate(kind, config) for config in configs], configs[0]))
        return 0
    code, finished = 0, []
    for number, config in enumerate(configs, start=1):
        console.print(f"{config.system} ({number} of {len(configs)}), records in {config.out}")
        try:
            code |= bool(runner.evaluate(kind, config, console).failures.count)
            finished.append(config.out)
        except DeltaMemError as error:
            code = runner.FAILED
            Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(
                f"{config.system} could not run: {error}"
            )
    if finished:
        runs, page = load_runs(finished), out / runner.REPORT_FILE
        write_report(runs, page)
        print_comparison(runs, console, page=page)
    return code


def _parsed(settings: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """The benchmark, the systems without repeats, and all that is given by key."""
    from eval.systems.kinds import system_names

    given = dict(setting.partition("=")[::2] for setting in settings)
    name = given.get("benchmark", "")
    if name not in plugins.names("benchmarks"):
        raise DeltaMemError(f"benchmark={name} does not exist; there are: {', '.join(plugins.names('benchmarks'))}")
    systems = [part.strip() for part in given.get("systems", "").strip("[] ").split(",") if part.strip()]
    if not systems:
        raise DeltaMemError(
            f"name the systems, for example systems=[none,naive_rag]; there are: {', '.join(system_names())}"
        )
    if "system" in given:
        raise DeltaMemError("say systems=[...] in place of system=...")
    return name, list(dict.fromkeys(systems)), given


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of benchmark runs.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the page with all questions there.", show_default=False)] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every score of every run there.", show_default=False)] = None,
) -> None:
    """Show runs beside each other and beside the numbers that papers report."""
    from eval.compare.export import print_comparison, write_csv
    from eval.compare.page import write_report
    from eval.compare.runs import load_runs

    loaded = load_runs(runs)
    if csv is not None:
        write_csv(loaded, csv)
    if out is not None:
        write_report(loaded, out)
    print_comparison(loaded, Console(highlight=False), page=out)


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="table4, figure3, figure4 or table7.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys of the benchmark, and runs=FOLDER of training runs, out=, points=[...], serve=vllm, "
            "serve_args=[...], port=, start_minutes=; draw=true only shows what lies in out.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Evaluate what the paper varies (threshold, lexical fidelity, sessions, searches): a table beside its numbers, charts.

    Trained policies and untrained models are served here one after the other, unless manager.base_url says where they are.
    """
    from eval.sweep.run import sweep

    return sweep(name, settings or [], Console(highlight=False))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The data set; an unknown name lists those that exist.", show_default=False)],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You accept the licence, which is shown without this.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder of data: $DELTAMEM_DATA, or else data/ of the checkout.", show_default=False),
    ] = None,
) -> None:
    """Download the data of a benchmark from where its authors publish it."""
    from eval import data

    folder = folder or data.data_folders()[0]  # the commands look there first
    data.fetch(name, folder=folder, accept_licence=accept_licence, console=Console(stderr=True, highlight=False))


def main() -> NoReturn:
    """Run the sub-command that the command line names and exit; bad input is one sentence and exit code 2."""

    def command() -> int:
        try:
            return app(prog_name="python -m eval", standalone_mode=False) or 0
        except TyperException as error:
            raise DeltaMemError(f"{error.format_message().rstrip('.')}; see python -m eval --help") from error
        except typer.Abort:
            raise KeyboardInterrupt from None

    run_plain(command)


if __name__ == "__main__":
    main()
