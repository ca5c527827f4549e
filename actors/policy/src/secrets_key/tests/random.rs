//! Members with lost, late and repeated messages, several leaders at a time, and crashes.

use proptest::prelude::*;

use super::*;

/// A message between members, or a proposal on its way into the log.
#[derive(Clone, Debug)]
enum Message {
    Store {
        from: usize,
        to: usize,
        id: String,
    },
    Stored {
        from: usize,
        to: usize,
        id: String,
        ok: bool,
    },
    Fetch {
        from: usize,
        to: usize,
        id: String,
    },
    Fetched {
        from: usize,
        to: usize,
        id: String,
        ok: bool,
    },
    Propose {
        from: usize,
        id: String,
        replaces: String,
    },
}

struct Member {
    core: Core,
    disk: Vec<String>,
    /// Number of entries of the log that it has applied.
    applied: usize,
    leading: Option<u64>,
}

struct World {
    now: Instant,
    members: Vec<Member>,
    /// Ids that the state machine accepted, in order.
    log: Vec<String>,
    messages: Vec<Message>,
    made: usize,
    term: u64,
    rotations: usize,
}

fn host(member: usize) -> String {
    format!("n{member}")
}

fn member(host: &str) -> usize {
    host[1..].parse().unwrap()
}

impl World {
    fn new(size: usize) -> Self {
        let member = || Member {
            core: Core::default(),
            disk: Vec::new(),
            applied: 0,
            leading: None,
        };
        Self {
            now: Instant::now(),
            members: (0..size).map(|_| member()).collect(),
            log: Vec::new(),
            messages: Vec::new(),
            made: 0,
            term: 0,
            rotations: 0,
        }
    }

    fn show(&mut self, at: usize) {
        let others = (0..self.members.len()).filter(|other| *other != at);
        let others = others.map(host).collect();
        let member = &mut self.members[at];
        let named = member
            .applied
            .checked_sub(1)
            .map(|last| self.log[last].clone());
        member.core.handle_view(
            self.now,
            View {
                named: named.unwrap_or_default(),
                others,
                leading: member.leading,
                same_version: true,
            },
        );
        self.drive(at);
    }

    fn write(&mut self, at: usize, id: &str) {
        self.members[at].disk = self.members[at].core.to_keep(id);
    }

    fn drive(&mut self, at: usize) {
        while let Some(action) = self.members[at].core.poll_action() {
            match action {
                Action::Make => {
                    self.made += 1;
                    let id = format!("k{}", self.made);
                    self.write(at, &id);
                    self.members[at].core.handle_made(self.now, Ok(id));
                }
                Action::Store { host, id } => self.messages.push(Message::Store {
                    from: at,
                    to: member(&host),
                    id,
                }),
                Action::Fetch { host, id } => self.messages.push(Message::Fetch {
                    from: at,
                    to: member(&host),
                    id,
                }),
                Action::Propose { id, replaces } => self.messages.push(Message::Propose {
                    from: at,
                    id,
                    replaces,
                }),
                Action::Keep(keep) => {
                    self.members[at].disk.retain(|id| keep.contains(id));
                    self.members[at].core.handle_kept(self.now, Some(keep));
                }
                Action::Rotated(_) => {}
            }
        }
        assert_eq!(self.members[at].core.held(), self.members[at].disk);
        if let Some(at) = self.members[at].core.poll_timeout() {
            assert!(at > self.now, "the shell would spin");
        }
    }

    /// Appends a proposal to the log if the state machine accepts it.
    fn commit(&mut self, id: &str, replaces: &str) -> Result<(), String> {
        let named = self.log.last().map_or("", String::as_str);
        if named == id {
            return Ok(());
        }
        if named != replaces {
            return Err("replaced".to_owned());
        }
        let on_disk = self
            .members
            .iter()
            .filter(|member| member.disk.iter().any(|key| key == id));
        assert!(
            2 * on_disk.count() > self.members.len(),
            "{id} is not on a majority's disks"
        );
        assert!(!self.log.iter().any(|known| known == id), "{id} comes back");
        self.log.push(id.to_owned());
        Ok(())
    }

    fn deliver(&mut self, message: Message) {
        let now = self.now;
        let at = match message {
            Message::Store { from, to, id } => {
                self.write(to, &id);
                self.members[to].core.handle_written(now, &id);
                let (from, to) = (to, from);
                self.messages.push(Message::Stored {
                    from,
                    to,
                    id,
                    ok: true,
                });
                from
            }
            Message::Fetch { from, to, id } => {
                let ok = self.members[to].disk.contains(&id);
                let (from, to) = (to, from);
                self.messages.push(Message::Fetched { from, to, id, ok });
                from
            }
            Message::Stored { from, to, id, ok } => {
                self.members[to]
                    .core
                    .handle_stored(now, &host(from), &id, ok);
                to
            }
            Message::Fetched { from, to, id, ok } => {
                if ok {
                    self.write(to, &id);
                }
                self.members[to]
                    .core
                    .handle_fetched(now, &host(from), &id, ok);
                to
            }
            Message::Propose { from, id, replaces } => {
                let result = self.commit(&id, &replaces);
                self.members[from].core.handle_proposed(now, &id, result);
                from
            }
        };
        self.drive(at);
    }

    /// Loses a message; its sender gets an error in the end.
    fn lose(&mut self, message: Message) {
        let (from, to) = match &message {
            Message::Store { from, to, .. } | Message::Fetch { from, to, .. } => (*to, *from),
            Message::Stored { from, to, .. } | Message::Fetched { from, to, .. } => (*from, *to),
            Message::Propose { from, .. } => (*from, *from),
        };
        let failed = match message {
            Message::Store { id, .. } | Message::Stored { id, .. } => Message::Stored {
                from,
                to,
                id,
                ok: false,
            },
            Message::Fetch { id, .. } | Message::Fetched { id, .. } => Message::Fetched {
                from,
                to,
                id,
                ok: false,
            },
            Message::Propose { id, .. } => {
                let lost = Err("unknown outcome".to_owned());
                self.members[from].core.handle_proposed(self.now, &id, lost);
                return self.drive(from);
            }
        };
        self.deliver(failed);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for at in 0..self.members.len() {
            self.members[at].core.handle_timeout(self.now);
            self.drive(at);
        }
    }

    fn step(&mut self, byte: u8, pick: u8) {
        let at = usize::from(pick) % self.members.len();
        let message = |world: &Self| match world.messages.len() {
            0 => None,
            count => Some(usize::from(pick) % count),
        };
        match byte % 16 {
            // Former leaders do not notice at once.
            0 => {
                self.term += 1;
                self.members[at].applied = self.log.len();
                self.members[at].leading = Some(self.term);
                self.show(at);
            }
            1 => {
                self.members[at].leading = None;
                self.show(at);
            }
            2 | 3 => {
                let member = &mut self.members[at];
                member.applied = (member.applied + 1).min(self.log.len());
                self.show(at);
            }
            4 => self.pass(Duration::from_secs(1)),
            5 => {
                let member = &mut self.members[at];
                member.core = Core::new(member.disk.clone());
                member.leading = None;
                self.show(at);
            }
            6 if self.rotations < 2 => {
                let started = self.members[at].core.handle_rotate(self.now);
                self.rotations += usize::from(started.is_ok());
                self.drive(at);
            }
            7 | 8 => {
                if let Some(index) = message(self) {
                    let lost = self.messages.remove(index);
                    self.lose(lost);
                }
            }
            9 => {
                if let Some(index) = message(self) {
                    let repeated = self.messages[index].clone();
                    self.deliver(repeated);
                }
            }
            _ => {
                if let Some(index) = message(self) {
                    let message = self.messages.remove(index);
                    self.deliver(message);
                }
            }
        }
    }

    /// Ends all faults: one leader, and every message arrives.
    fn heal(&mut self, leader: usize) {
        self.term += 1;
        for at in 0..self.members.len() {
            self.members[at].leading = (at == leader).then_some(self.term);
        }
        for _ in 0..60 {
            for at in 0..self.members.len() {
                self.members[at].applied = self.log.len();
                self.show(at);
            }
            for message in std::mem::take(&mut self.messages) {
                self.deliver(message);
            }
            self.pass(Duration::from_secs(1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The steps check that each named key is on the disks of a majority.
    #[test]
    fn one_key_is_named_and_reaches_every_member(
        size in 1..=5_usize, steps in prop::collection::vec(any::<(u8, u8)>(), 0..200),
    ) {
        let mut world = World::new(size);
        for (byte, pick) in steps {
            world.step(byte, pick);
            prop_assert!(world.log.len() <= 1 + world.rotations, "{:?}", world.log);
        }
        world.heal(0);
        let named = world.log.last().expect("a key is named");
        for member in &world.members {
            prop_assert_eq!(member.core.status(), Status::Held);
            prop_assert!(member.disk.contains(named));
        }
    }
}
