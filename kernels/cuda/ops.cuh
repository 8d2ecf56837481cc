// Every kernel there is.
#pragma once

#include "batchnorm_spread.cuh"
#include "gru.cuh"
#include "loss.cuh"
#include "matmul.cuh"
#include "move.cuh"
#include "probe.cuh"
#include "reduce.cuh"
