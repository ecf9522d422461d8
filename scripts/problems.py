"""What scripts that plan many problems share: which problems, and how a plan is asked for."""
import json, subprocess, sys


def chosen(problems, words):
    """Those that contain one of the words; all if there are none."""
    return [problem for problem in problems if not words or any(word in problem for word in words)]


def plan(windlass, problem, *flags):
    """The plan as JSON, or None if there is none. Ends the script if windlass fails."""
    run = subprocess.run([windlass, "plan", *problem.split(), *flags, "--json"], capture_output=True, text=True)
    if run.returncode not in (0, 2):
        sys.exit(f"{problem} {' '.join(flags)}: {run.stderr}")
    return json.loads(run.stdout) if run.returncode == 0 else None
