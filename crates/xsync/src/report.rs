//! Information about a session for users: its report, its home, its status socket. Stands on no other module here.

pub(crate) mod session_home;
pub mod session_report;
pub mod status_socket;
