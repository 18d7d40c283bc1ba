//! What a session tells those who look: its report, its home, its status socket. Stands on nothing else here.

pub(crate) mod session_home;
pub mod session_report;
pub mod status_socket;
