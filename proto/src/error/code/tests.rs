use super::*;

/// Text and gRPC status number of every code; clients depend on them.
#[cfg(feature = "grpc")]
const CONTRACT: [(&str, i32); 72] = [
    ("cluster_uninitialized", 14),
    ("cluster_already_initialized", 9),
    ("node_already_member", 6),
    ("node_not_found", 5),
    ("token_invalid", 16),
    ("token_revoked", 16),
    ("privilege_denied", 7),
    ("peer_only", 7),
    ("join_token_invalid", 7),
    ("join_token_consumed", 7),
    ("join_token_expired", 7),
    ("ca_digest_mismatch", 9),
    ("clock_skew", 9),
    ("peer_unreachable", 14),
    ("csr_invalid", 3),
    ("ca_missing", 13),
    ("no_leader", 14),
    ("quorum_lost", 14),
    ("raft_unavailable", 14),
    ("state_unavailable", 14),
    ("raft_apply_failed", 13),
    ("raft_add_nonvoter_failed", 13),
    ("raft_demote_failed", 13),
    ("raft_remove_failed", 13),
    ("rand_failed", 13),
    ("unimplemented", 12),
    ("internal", 13),
    ("validation_failed", 3),
    ("parse_failed", 3),
    ("unknown_service", 3),
    ("unknown_host", 3),
    ("unknown_network", 3),
    ("reserved_port", 3),
    ("port_conflict", 3),
    ("route_conflict", 3),
    ("replicas_exceed_pinned_hosts", 3),
    ("legacy_compose_field", 3),
    ("env_file_unresolved", 3),
    ("route_tls_mixed", 3),
    ("domain_required", 3),
    ("cert_invalid", 3),
    ("cert_not_found", 5),
    ("config_missing", 3),
    ("secret_missing", 3),
    ("secret_unresolved", 3),
    ("secret_conflict", 3),
    ("config_not_found", 5),
    ("secret_not_found", 5),
    ("file_exists", 6),
    ("route_multiple_catchall", 3),
    ("invalid_depends_on", 3),
    ("unknown_depends_on_service", 3),
    ("unsupported_depends_on_condition", 3),
    ("deployment_not_found", 5),
    ("no_previous_revision", 9),
    ("rollout_not_found", 5),
    ("route_not_found", 5),
    ("replica_not_found", 5),
    ("drain_no_placement", 9),
    ("drain_timeout", 9),
    ("drain_cancelled", 4),
    ("drain_apply_failed", 13),
    ("subnet_pool_exhausted", 8),
    ("ipam_unavailable", 14),
    ("no_cluster", 9),
    ("backup_failed", 13),
    ("logs_unavailable", 14),
    ("logs_stream", 13),
    ("config_key_unknown", 3),
    ("config_value_invalid", 3),
    ("secrets_key_missing", 14),
    ("secrets_key_mismatch", 9),
];

#[cfg(feature = "grpc")]
#[test]
fn every_code_has_its_text_and_grpc_status() {
    let ours: Vec<(&str, i32)> = ErrorCode::ALL
        .iter()
        .map(|code| (code.as_str(), code.grpc() as i32))
        .collect();

    assert_eq!(ours, CONTRACT);
}

#[test]
fn every_code_round_trips_as_text() {
    for code in ErrorCode::ALL {
        assert_eq!(code.as_str().parse(), Ok(*code));
    }
    for text in ["", "No_Leader", "no_leader ", "NoLeader", "nosuch"] {
        assert_eq!(text.parse::<ErrorCode>(), Err(UnknownCode), "{text:?}");
    }
}

#[test]
fn codes_are_lower_snake_case() {
    for code in ErrorCode::ALL {
        let text = code.as_str();
        assert!(text.starts_with(|c: char| c.is_ascii_lowercase()), "{text}");
        assert!(
            text.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
            "{text}"
        );
    }
}
