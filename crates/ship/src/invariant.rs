//! The rules of shipping. Each names the mutant that breaks it, as `docs/design/SHIP_PROTOCOL.md` lists them.

untorn_os::invariants! {
    /// The only fence is an end in the log's next name (`fence-elsewhere`).
    FENCE_IN_THE_LOG,
    /// An end ends the generation; the next has names of its own (`fence-in-generation`).
    GENERATION_ENDS,
    /// Each start of a shipper is a generation (`same-tenure`).
    START_IS_A_GENERATION,
    /// The tip is the end of the dense chain (`tip-highest`).
    CHAIN_IS_DENSE,
    /// Objects are acknowledged in order, though several are in flight (`ack-any-order`).
    ACKNOWLEDGED_IN_ORDER,
    /// A name that is taken is read: it counts only if the object is mine (`412-is-success`).
    TAKEN_NAME_IS_READ,
    /// My own object under the name is no fence (`own-is-fence`).
    OWN_OBJECT_IS_NO_FENCE,
    /// The floor decides about an absent or foreign object at a place of mine (`settle-no-floor`).
    FLOOR_SETTLES,
    /// An end that was won counts only if the floor that is read afterwards is below it (`no-verify`).
    WON_END_IS_VERIFIED,
    /// The floor is read after the objects, never before (`floor-before-object`).
    OBJECT_BEFORE_FLOOR,
    /// A walk from a remembered place looks at the floor, too (`walk-no-floor`).
    REMEMBERED_PLACE_IS_CHECKED,
    /// Ends are never deleted (`gc-deletes-ends`).
    ENDS_STAY,
    /// The floor never goes back (`floor-goes-back`).
    FLOOR_RISES,
    /// A store ships only if it contains the bucket's newest commit, by epoch and LSN (`takeover-by-lsn`).
    STORE_CONTAINS_TIP,
    /// The store contains the last commit that was sent, before each object (`check-at-start-only`).
    STORE_CHECKED_EACH_TIME,
    /// A new history needs a person's word (`auto-fork`).
    FORK_ONLY_ON_REQUEST,
    /// A gap is a new generation with a snapshot (`gap-ignored`).
    GAP_NEEDS_A_SNAPSHOT,
    /// Only durable commits are shipped (`ship-undurable`).
    DURABLE_COMMITS_ONLY,
    /// The owner id is durable before the end is sent (`owner-late`).
    OWNER_BEFORE_THE_END,
    /// The owner id is kept over a take-over (`takeover-new-owner`).
    OWNER_STAYS,
    /// A copy of a store is not the owner (`copy-is-owner`).
    COPY_IS_NOT_THE_OWNER,
    /// A replica looks at the floor, even if there is no news (`replica-no-floor`).
    REPLICA_READS_THE_FLOOR,
    /// An end with a snapshot replaces everything, and the hash must fit (`replica-no-chain`).
    REPLICA_CHECKS_THE_CHAIN,
    /// A promotion applies the commits that came between, then tries again (`promote-skips`).
    PROMOTION_APPLIES_FIRST,
    /// A promoted replica opens for writing only after its end was won (`promote-opens-early`).
    PROMOTION_WINS_FIRST,
    /// A manifest counts if it is the highest, or if the next one names it (`manifest-unverified`).
    MANIFEST_IS_VERIFIED,
    /// That a manifest's predecessor exists proves nothing (`manifest-predecessor`).
    MANIFEST_BY_ITS_SUCCESSOR,
    /// Retention is published before anything is deleted (`delete-then-publish`).
    PUBLISHED_BEFORE_DELETED,
    /// The floor is a registered snapshot (`floor-unregistered`).
    FLOOR_IS_REGISTERED,
    /// Log objects are deleted up to the floor, and no others (`gc-logs-to-newest`).
    LOG_STAYS_ABOVE_FLOOR,
    /// A snapshot is announced before it is uploaded (`no-intent`).
    ANNOUNCED_FIRST,
    /// The pruner spares snapshots that its manifest announces (`gc-ignores-intents`).
    ANNOUNCED_STAY,
    /// The pruner spares snapshots that are newer than its manifest (`gc-deletes-unknown`).
    UNKNOWN_STAY,
    /// A snapshot's number is that of the manifest which announced it (`intent-keeps-id`).
    NUMBER_OF_THE_MANIFEST,
    /// A snapshot is registered only while it is announced (`register-no-intent-check`).
    REGISTERED_WHILE_ANNOUNCED,
    /// A snapshot is registered only while its base is registered (`register-no-base-check`).
    REGISTERED_WITH_ITS_BASE,
    /// Both are looked at again after each manifest that was lost (`register-blind-retry`).
    REGISTRATION_LOOKS_AGAIN,
    /// A prune that was lost is planned anew (`prune-blind-retry`).
    PRUNE_PLANS_AGAIN,
    /// Snapshots share extents with their base only (`share-any`).
    SHARED_WITH_THE_BASE,
    /// The snapshot of an end stays until the floor is beyond the end's place (`end-snapshot-orphan`).
    SNAPSHOT_OF_END_STAYS,
}
