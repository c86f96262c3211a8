//! Collective algorithms as pure schedules, their costs, the choice among them, and a checker that proves them.
