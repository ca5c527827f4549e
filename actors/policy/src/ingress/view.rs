//! When the routing of one node is derived again from the state. Pure.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_state::State;

use crate::debounce::{Action, Debounce};

/// Debounce time after the last change.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Longest delay of an update by further changes.
pub const MAX_DEBOUNCE: Duration = Duration::from_secs(1);

/// Whether two states agree on everything that a part of the routing depends on.
pub type SameInput = fn(&State, &State) -> bool;

/// The state that a part of the routing follows, and when that part is derived again: after changes
/// of its input, or of the hosts that can be reached.
#[derive(Clone, Debug)]
pub struct ServingView {
    newest: Arc<State>,
    same_input: SameInput,
    debounce: Debounce,
}

impl ServingView {
    /// Creates a view of `state`, from which the routing has been derived.
    #[must_use]
    pub fn new(state: Arc<State>, same_input: SameInput) -> Self {
        Self {
            newest: state,
            same_input,
            debounce: Debounce::new(DEBOUNCE, MAX_DEBOUNCE),
        }
    }

    /// The newest state.
    #[must_use]
    pub fn state(&self) -> &Arc<State> {
        &self.newest
    }

    /// Handles a newer state.
    pub fn handle_state(&mut self, now: Instant, newest: Arc<State>) {
        let before = std::mem::replace(&mut self.newest, newest);
        if !(self.same_input)(&before, &self.newest) {
            self.debounce.handle_change(now);
        }
    }

    /// Handles a change of the hosts that are fresh, or of the mesh.
    pub fn handle_reachability(&mut self, now: Instant) {
        self.debounce.handle_change(now);
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.debounce.handle_timeout(now);
    }

    /// Time at which to call [`ServingView::handle_timeout`]; `None` without pending changes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.debounce.poll_timeout()
    }

    /// Whether the routing is due to be derived from [`ServingView::state`].
    pub fn poll_update(&mut self) -> bool {
        self.debounce.poll_action() == Some(Action::Run)
    }
}

/// Whether a part of the routing that was derived from `installed` shows no replica that `target`
/// or an earlier state had withdrawn.
#[must_use]
pub fn covers(installed: &State, target: &State, same_input: SameInput) -> bool {
    installed.applied_index >= target.applied_index || same_input(installed, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::table::{
        same_input,
        testing::{add_replica, state_with_route},
    };

    fn at(index: u64, state: &State) -> Arc<State> {
        let mut state = state.clone();
        state.applied_index = index;
        Arc::new(state)
    }

    #[test]
    fn only_changes_of_the_input_cause_an_update() {
        let start = Instant::now();
        let mut state = state_with_route();
        let mut view = ServingView::new(at(1, &state), same_input);
        view.handle_state(start, at(2, &state));
        assert_eq!(view.poll_timeout(), None);
        assert_eq!(view.state().applied_index, 2);
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        view.handle_state(start, at(3, &state));
        assert_eq!(view.poll_timeout(), Some(start + DEBOUNCE));
        view.handle_timeout(start + DEBOUNCE);
        assert!(view.poll_update());
        assert!(!view.poll_update());
        view.handle_reachability(start);
        assert_eq!(view.poll_timeout(), Some(start + DEBOUNCE));
    }

    #[test]
    fn routing_covers_later_states_with_the_same_input() {
        let mut state = state_with_route();
        let installed = at(5, &state);
        let unchanged = at(9, &state);
        assert!(covers(&installed, &unchanged, same_input));
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let changed = at(9, &state);
        assert!(!covers(&installed, &changed, same_input));
        assert!(covers(&at(10, &state_with_route()), &changed, same_input));
    }
}
