//! RocksDB options: durable where raft needs it, with small buffers.

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode, LogLevel,
    Options, WriteOptions,
};

use super::schema::{LOG, META, STATE};

const MIB: usize = 1 << 20;

/// Memory for recent writes over all tables; the database flushes beyond it.
const WRITE_BUFFERS: usize = 8 * MIB;
/// Memory for blocks read back; after start-up only snapshots and slow followers cause reads.
const BLOCK_CACHE: usize = 2 * MIB;
/// Size of the live write-ahead log beyond which the oldest table is flushed; bounds replay at
/// start.
const WAL_LIMIT: u64 = 16 * MIB as u64;

pub(crate) fn database() -> Options {
    let mut options = Options::default();
    options.set_paranoid_checks(true);
    options.set_track_and_verify_wals_in_manifest(true);
    // A power cut may tear unsynced writes in any order, and those must not keep a node from
    // starting. Recovery therefore ends at the first torn write; the watermark next to the database
    // distinguishes a torn tail from the loss of synced writes.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_db_write_buffer_size(WRITE_BUFFERS);
    options.set_max_total_wal_size(WAL_LIMIT);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_manifest_preallocation_size(64 * 1024);
    options.set_max_manifest_file_size(MIB);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(MIB);
    options.set_log_level(LogLevel::Warn);
    // An idle node writes nothing, not even statistics to its log file.
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

pub(crate) fn tables() -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(BLOCK_CACHE);
    // RocksDB always has a table named `default`; it stays empty.
    [
        ("default", 64 * 1024, DBCompressionType::None),
        (META, 512 * 1024, DBCompressionType::None),
        (LOG, 4 * MIB, DBCompressionType::Lz4),
        (STATE, 4 * MIB, DBCompressionType::Lz4),
    ]
    .into_iter()
    .map(|(name, buffer, compression)| {
        let mut block = BlockBasedOptions::default();
        block.set_block_cache(&cache);
        block.set_block_size(16 * 1024);
        let mut options = Options::default();
        options.set_block_based_table_factory(&block);
        options.set_write_buffer_size(buffer);
        options.set_arena_block_size(64 * 1024);
        options.set_compression_type(compression);
        ColumnFamilyDescriptor::new(name, options)
    })
    .collect()
}

pub(crate) fn write(sync: bool) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(sync);
    options
}
