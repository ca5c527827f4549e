//! Network mechanisms of JACO.
