package controller

import "github.com/quittance/quittance/controller/internal/store"

// StoreFormat is the newest format of an attempt store that this controller
// reads, and the one that it writes. The packages' scripts know it too.
const StoreFormat = store.Format
