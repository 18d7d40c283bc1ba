//! The form of a listing, for every `ls`.

use clap::Args;

/// The form of a listing.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ListingForm {
    /// Also print permission bits, sizes, and the targets of symbolic links.
    #[arg(short, long)]
    pub long: bool,
    /// Also list everything in the directories below.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}
