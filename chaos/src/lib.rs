//! Lab, faults and history checks.
