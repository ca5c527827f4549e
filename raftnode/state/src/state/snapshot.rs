//! The state as one message, `FSMSnapshot`, for raft snapshots and backups.
//!
//! It is encoded and decoded one entity at a time: the message of a large state is never held in
//! memory next to the state itself.

mod decode;
mod encode;
mod owned;
#[cfg(test)]
mod tests;

use jaco_proto::v1;

pub use decode::{DecodedSnapshot, Rules, SnapshotError};
pub use encode::Extent;

use super::{State, entity::Entity};

/// Field number of the cluster singleton.
const CLUSTER: u32 = 1;
/// Field number of the audit trail.
const AUDIT: u32 = 15;
/// Wire type of length-delimited fields.
const DELIMITED: u32 = 2;

/// A repeated field of the message, with the functions of its entity type.
struct Kind {
    field: u32,
    measure: fn(&State, u32, &mut Extent),
    encoded: for<'a> fn(&'a State, u32) -> encode::Fields<'a>,
    owned: fn(&State, u32) -> owned::OwnedFields,
    insert: fn(&mut State, u32, &[u8], &Rules) -> Result<(), SnapshotError>,
}

const fn kind<E: Entity>(field: u32) -> Kind {
    Kind {
        field,
        measure: encode::measure::<E>,
        encoded: encode::fields_of::<E>,
        owned: owned::fields_of::<E>,
        insert: decode::insert::<E>,
    }
}

/// Ascending by field number, as every encoder of the format writes them.
static KINDS: [Kind; 24] = [
    kind::<v1::Node>(2),
    kind::<v1::Deployment>(3),
    kind::<v1::ReplicaDesired>(4),
    kind::<v1::ReplicaObserved>(5),
    kind::<v1::Route>(6),
    kind::<v1::Cert>(7),
    kind::<v1::ChallengeToken>(8),
    kind::<v1::Token>(9),
    kind::<v1::JoinToken>(10),
    kind::<v1::Subnet>(11),
    kind::<v1::RolloutPlan>(12),
    kind::<v1::ReplicaCounter>(13),
    kind::<v1::RestartCounter>(14),
    kind::<v1::AuditEvent>(AUDIT),
    kind::<v1::CertBlob>(16),
    kind::<v1::TcpRoute>(17),
    kind::<v1::RegistryCredential>(18),
    kind::<v1::ClusterConfig>(1000),
    kind::<v1::Secret>(1004),
    kind::<v1::RouteTlsOverride>(1006),
    kind::<v1::ImportedCert>(1007),
    kind::<v1::FreedSubnet>(1200),
    kind::<v1::FileContent>(1201),
    kind::<v1::ClusterFile>(1202),
];
