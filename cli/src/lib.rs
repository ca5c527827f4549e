//! Parts of the two binaries of JACO.
