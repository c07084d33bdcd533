"""Worker processes: how they are started, told what to hold, watched and replaced."""
