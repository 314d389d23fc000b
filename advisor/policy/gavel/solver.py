"""Linear programs for HiGHS, sparse: maximise a linear goal over shares of time.

A vertex gives some jobs everything and others nothing wherever there is a tie; the mean of a face is fairer, and
it is what the interior-point solvers of the published policies return. So HiGHS' interior-point method stops inside
the optimal face (no crossover), which is also several times faster than its simplex on these programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float64]


OPTIONS: dict[str, object] = {
    "output_flag": False,
    "threads": 1,
    "solver": "ipx",
    "run_crossover": "off",
    "presolve": "off",  # it would put the point on the edge of what it removed
}


class Infeasible(Exception):
    """There is no point that satisfies the constraints."""


def maximise(goal: Floats, rows: Any, at_most: Floats, upper: Floats) -> Floats:
    """An x in 0…upper with rows @ x ≤ at_most, from the inside of all that maximise goal @ x; raises `Infeasible`."""
    return maximise_priced(goal, rows, at_most, upper)[0]


def maximise_priced(goal: Floats, rows: Any, at_most: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """As `maximise`, and the price of each row: what the goal would gain where `at_most` were larger by one."""
    import highspy

    matrix = sparse.csr_matrix(rows)
    lp = highspy.HighsLp()
    lp.num_col_ = len(goal)
    lp.num_row_ = matrix.shape[0]
    lp.col_cost_ = -np.asarray(goal, dtype=np.float64)
    lp.col_lower_ = np.zeros(len(goal))
    lp.col_upper_ = np.asarray(upper, dtype=np.float64)
    lp.row_lower_ = np.full(matrix.shape[0], -np.inf)
    lp.row_upper_ = np.asarray(at_most, dtype=np.float64)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.indptr
    lp.a_matrix_.index_ = matrix.indices
    lp.a_matrix_.value_ = matrix.data
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in OPTIONS.items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    # Without crossover HiGHS calls a point that is optimal within its tolerances "unknown" now and then.
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kUnknown):
        raise Infeasible(solver.modelStatusToString(status))
    solution = solver.getSolution()
    return np.asarray(solution.col_value, dtype=np.float64), -np.asarray(solution.row_dual, dtype=np.float64)
