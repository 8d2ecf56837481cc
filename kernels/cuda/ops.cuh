// Every kernel there is.
#pragma once

#include "batchnorm_columns.cuh"
#include "batchnorm_spread.cuh"
#include "gru.cuh"
#include "layernorm.cuh"
#include "loss.cuh"
#include "matmul.cuh"
#include "move.cuh"
#include "probe.cuh"
#include "reduce.cuh"
